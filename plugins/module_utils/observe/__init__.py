# SPDX-License-Identifier: Apache-2.0
"""What a node is.

More files than in other rooms: one for each thing that is read, and a node has so many.
"""
