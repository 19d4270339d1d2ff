# SPDX-License-Identifier: Apache-2.0
"""A fleet of simulated MI300X nodes on one machine. See README.md."""
