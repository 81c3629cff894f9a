"""Things to store on a hub."""

CARD = """---
license: apache-2.0
library_name: timm
base_model: timm/resnet18.a1_in1k
base_model_relation: finetune
tags: [pruned, sparsity-90]
model-index:
- name: tiny
  results:
  - task: {type: image-classification}
    dataset: {type: ILSVRC/imagenet-1k, name: ImageNet-1k}
    metrics: [{type: accuracy, value: 0.5}]
---
# Tiny
"""
WEIGHTS = bytes(range(256)) * 2000


def push_folder(folder):
    from huggingface_hub import HfApi

    api = HfApi()
    api.create_repo("user/model", private=True, exist_ok=True)
    return api.upload_folder(repo_id="user/model", folder_path=folder).oid
