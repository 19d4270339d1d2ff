# SPDX-License-Identifier: Apache-2.0
"""JSON schemas of what the collection writes: made of its dataclasses, and of the types here (`make generate`)."""
