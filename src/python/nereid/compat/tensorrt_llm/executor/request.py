# SPDX-License-Identifier: Apache-2.0
import os
from dataclasses import dataclass


@dataclass
class LoRARequest:
    """An adapter for a prompt. Its folder is read once; the number must name no other."""
    lora_name: str
    lora_int_id: int
    lora_path: str = ""

    def __post_init__(self) -> None:
        if not os.path.exists(self.lora_path):
            raise ValueError(f"lora_path ({self.lora_path}) does not exist.")
        if self.lora_int_id < 1:
            raise ValueError(f"lora_int_id is {self.lora_int_id}, expected a number above 0")

    @property
    def adapter_id(self) -> int:
        return self.lora_int_id

    @property
    def name(self) -> str:
        return self.lora_name

    @property
    def path(self) -> str:
        return self.lora_path
