# SPDX-License-Identifier: Apache-2.0
"""Stand-in for the Hugging Face hub: enough of its HTTP API for the real huggingface_hub."""
