"""`vllm/lora/request.py`, a struct."""


class LoRARequest:
    def __init__(
        self, lora_name, lora_int_id, lora_path="", base_model_name=None, load_inplace=False, is_3d_lora_weight=False
    ):  # fmt: skip
        assert lora_int_id >= 1 and lora_path
        self.lora_name, self.lora_int_id, self.lora_path = lora_name, lora_int_id, lora_path
