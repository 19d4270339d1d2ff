# fastsafetensors on top of an image with vLLM for ROCm, for --load-format fastsafetensors. See docs/build.md.
ARG BASE_IMAGE
FROM ${BASE_IMAGE}
ARG FASTSAFETENSORS_REPO=https://github.com/foundation-model-stack/fastsafetensors.git
# A commit or a tag, compiled for the ROCm of the image.
ARG FASTSAFETENSORS_REF
RUN test -n "${FASTSAFETENSORS_REF}" \
    && git clone "${FASTSAFETENSORS_REPO}" /tmp/fastsafetensors \
    && git -C /tmp/fastsafetensors checkout --detach "${FASTSAFETENSORS_REF}" \
    && pip install --no-build-isolation --no-deps /tmp/fastsafetensors \
    && rm -rf /tmp/fastsafetensors
