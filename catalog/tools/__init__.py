# SPDX-License-Identifier: Apache-2.0
"""What keeps the catalogue's vLLM data up to date; for catalog/regenerate.py and the tests, not for plans."""
