#!/usr/bin/python
# SPDX-License-Identifier: Apache-2.0
"""Documentation of bundle_content; the work is done on the control node, by plugins/action/bundle_content.py."""

from __future__ import annotations

DOCUMENTATION = r"""
module: bundle_content
short_description: Find what a bundle for a network without registries and hubs must contain
version_added: "0.2.0"
description:
  - Returns the images, models, draft models, adapters and tokenizers of all deployments of the inventory, as
    C(fleet.lock.json) pins them, whatever hosts already have; models that M(instinct.fleet.model_quantize) has made;
    their licences, and the lock itself.
  - Finds the files of the control node that variables of all hosts name, such as data sets and packages. It fails for a
    path that is not there, and for a file that is a secret.
  - Runs on the control node only, and connects to nothing.
options:
  load:
    description: Return the pins of the whole lock only, with which M(instinct.fleet.blob_bundle) compares a bundle.
    type: bool
    default: false
extends_documentation_fragment:
  - instinct.fleet.attributes.control_node
attributes:
  check_mode:
    support: full
    details: It changes nothing.
  diff_mode:
    support: none
    details: It changes nothing.
author: instinct-fleet contributors (@instinct-fleet)
seealso:
  - module: instinct.fleet.blob_bundle
  - module: instinct.fleet.blob_fetch
"""

EXAMPLES = r"""
- name: Find what belongs in the bundle
  instinct.fleet.bundle_content:
  register: __bundle_content
"""

RETURN = r"""
images:
  description: Arguments of M(instinct.fleet.blob_fetch), one for each image.
  type: list
  elements: dict
  returned: without O(load)
models:
  description: Arguments of M(instinct.fleet.blob_fetch), one for each model.
  type: list
  elements: dict
  returned: without O(load)
repositories:
  description: Arguments of M(instinct.fleet.blob_fetch), one for each model that was made on the fleet.
  type: list
  elements: dict
  returned: without O(load)
files:
  description: An item with the files of the control node, as M(instinct.fleet.control_files) takes them; or none.
  type: list
  elements: dict
  returned: without O(load)
pins:
  description: Digests of images by reference, and commits of models by their key in the lock.
  type: dict
  returned: success
lock:
  description: The text of C(fleet.lock.json).
  type: str
  returned: without O(load)
about:
  description: The release, the deployments, and the licences with the files that have their texts.
  type: dict
  returned: without O(load)
"""
