# vLLM from source on top of an image that has ROCm, PyTorch and what compiles vLLM, such as rocm/vllm. See docs/build.md.
ARG BASE_IMAGE
FROM ${BASE_IMAGE}
ARG VLLM_REPO=https://github.com/vllm-project/vllm.git
# A commit or a tag.
ARG VLLM_REF
ARG PYTORCH_ROCM_ARCH=gfx942;gfx950
ENV PYTORCH_ROCM_ARCH=${PYTORCH_ROCM_ARCH}
ARG MAX_JOBS=64
RUN test -n "${VLLM_REF}" \
    && git clone "${VLLM_REPO}" /tmp/vllm \
    && git -C /tmp/vllm checkout --detach "${VLLM_REF}" \
    && cd /tmp/vllm \
    && pip install -r requirements/rocm.txt \
    && { pip uninstall -y vllm || true; } \
    && MAX_JOBS="${MAX_JOBS}" VLLM_TARGET_DEVICE=rocm pip install --no-build-isolation --no-deps . \
    && cd / && rm -rf /tmp/vllm
