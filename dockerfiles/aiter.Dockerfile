# AITER from source, on top of an image with vLLM for ROCm, in place of the AITER that it has. See docs/build.md.
ARG BASE_IMAGE
FROM ${BASE_IMAGE}
ARG AITER_REPO=https://github.com/ROCm/aiter.git
# A commit or a tag; vLLM's docker/Dockerfile.rocm_base names the one that vLLM was tested with.
ARG AITER_REF
ARG GPU_ARCHS=gfx942;gfx950
# PREBUILD_KERNELS compiles the kernels now instead of at the first start on each host.
RUN test -n "${AITER_REF}" \
    && git clone --recursive "${AITER_REPO}" /tmp/aiter \
    && git -C /tmp/aiter checkout --detach "${AITER_REF}" \
    && git -C /tmp/aiter submodule update --init --recursive \
    && { pip uninstall -y aiter amd-aiter || true; } \
    && PREBUILD_KERNELS=1 GPU_ARCHS="${GPU_ARCHS}" pip install --no-build-isolation --no-deps /tmp/aiter \
    && rm -rf /tmp/aiter
