"""What people write, as a type checker reads it: nothing here is an error. Continuous integration checks it."""

from pathlib import Path
from typing import Any

import costmodel as cm
from costmodel.training.optimizers import Optimizer, State
from costmodel.training.precision import Precision

mlp = cm.MLP(sizes=[784, 512, 10], activation="relu")
widths: tuple[int, ...] = mlp.sizes
cm.MLP(sizes=(784, 512, 10))
cm.CNN(input=[3, 32, 32], blocks=["relu", {"linear": {"features": 10}}])
cm.VisionTransformer(input=[3, 32, 32], patch=4, layers=2, width=64, heads=4, pooler="tanh")
moe = cm.GPT(vocab=100, context=64, layers=2, width=64, heads=4, experts={"count": 8, "per_token": 2}, window=16)
cm.Transformer(
    vocab=100, context=64, layers=2, width=64, heads=4, window={"size": 8, "pattern": [True, False]}, head=False
)
count: int = moe.experts.count if moe.experts is not None else 0

prediction = cm.predict("gpt2-small")
params: int = prediction.params
cm.predict(
    "gpt2-small",
    batch=32,
    seq=512,
    image=224,
    mode="train",
    optimizer="adamw",
    precision="bf16-autocast",
    attention="flash",
    loss=None,
    loss_chunks=4,
    device="cpu",
    flop_rule="arithmetic",
    attention_pairs="visible",
    checkpoint="block",
    accumulate=2,
    freeze="embedding",
    lora={"rank": 8, "targets": ["qkv"]},
    update="fused",
    allocator="cuda",
)
cm.predict(mlp, checkpoint=["mlp"], image=(224, 320), freeze=["embedding", "mlp"], seq=None, loss="none", lora=None)
cm.predict(mlp, checkpoint=4, image=[224, 320], freeze=("embedding",), target_seq=128)
cm.predict(mlp, optimizer=Optimizer("mine", (State("momentum"),)), precision=Precision("mine", weight="bf16"))
cm.predict(mlp, optimizer=Path("mine.yaml"), precision=Path("mine.yaml"))
cm.predict(mlp, optimizer={"name": "mine", "states": [{"name": "momentum"}]}, precision={"name": "mine"})
cm.predict(cm.GPT2Small, batch=1)
settings: dict[str, Any] = {"batch": 32, "seq": 512}
cm.predict("gpt2-small", **settings)

cm.compare("gpt2-small", "gpt2-medium", batch=32, optimizer=["sgd", "adamw"], layers=[12, 24])
cm.compare(prediction, prediction, quantities="params")
cm.solve("gpt2-small", "memory.peak", "24 GiB", for_="batch", seq=512)
cm.max_batch("gpt2-small", memory="24 GiB", seq=512)
cm.max_seq("gpt2-small", memory=24e9, batch=2)
cm.max_layers("gpt2-small", memory="24 GiB", reserve="1 GiB", batch=2)
cm.max_width("gpt2-small", memory="24 GiB", batch=2)
cm.break_even("gpt2-small", "attention", "mlp", for_="seq", batch=1)
cm.sensitivity("gpt2-small", "memory.peak", batch=8)
cm.recommend("gpt2-small", memory="24 GiB", samples=512, optimizer=["sgd", "adamw"], batch=range(1, 9))
cm.match("gpt2-small", "params", "124M", by="layers", batch=8)
cm.cheapest_checkpoint("gpt2-small", "24 GiB", batch=8)
grid = cm.sweep(
    "gpt2-small", batch=range(1, 65), seq=[512, 1024], layers=[6, 12], tied=False, checkpoint=["none", ["mlp"], 2]
)
fields: dict[str, Any] = {"experts.count": [8, 16]}
cm.sweep("mixtral-8x7b", batch=1, **fields)
cm.pareto(grid, "memory.peak", "flops.total", most="batch")

cm.roofline.check("gpt2-small", level=6, batch=1, seq=64)
cm.roofline.profile("gpt2-small", rounds=3, batch=1, seq=64)
cm.roofline.compare("gpt2-small", "gpt2-medium", batch=1)
cm.roofline.execute("gpt2-small", seed=1, update=False, mode="train", optimizer="sgd")

lab = cm.Machine(name="lab", peak={"bf16": "400 TFLOP/s"}, bandwidth="2 TB/s", memory="64 GiB", tdp=700)
peak: float = lab.product_peak("bf16") / cm.load_machine("h100-sxm").bandwidth
names: list[str] = [machine.name for machine in cm.machines("hopper")]
host: cm.Machine = cm.roofline.machine(threads=1)
