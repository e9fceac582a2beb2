"""``axolotl train`` on several processes without GPUs: python -m torch.distributed.run --nproc_per_node 2 -m
support.axolotl_on_cpu config.yml

Axolotl places the model on the GPU that has the number of the process; here it stays where it was loaded.
"""

import sys

from axolotl.cli.train import do_cli
from axolotl.loaders.model import ModelLoader

own = ModelLoader._set_device_map_config


def stay_on_cpu(self):
    self.cfg.device_map = None
    own(self)


if __name__ == "__main__":
    ModelLoader._set_device_map_config = stay_on_cpu
    do_cli(sys.argv[1])
