"""Trains a GPT-2 with accelerate: bf16, gradient accumulation, and batches padded to their longest text."""

import argparse

import torch
from accelerate import Accelerator
from accelerate.utils import set_seed
from torch.utils.data import DataLoader
from transformers import GPT2Config, GPT2LMHeadModel, get_linear_schedule_with_warmup


def collate(texts):
    length = max(len(text) for text in texts)
    ids = torch.zeros(len(texts), length, dtype=torch.long)
    for row, text in enumerate(texts):
        ids[row, : len(text)] = text
    mask = (ids > 0).long()
    return {"input_ids": ids, "attention_mask": mask, "labels": ids.masked_fill(mask == 0, -100)}


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--save", default="")
    args = parser.parse_args()
    set_seed(42)
    accelerator = Accelerator(cpu=True, mixed_precision="bf16", gradient_accumulation_steps=2)
    config = GPT2Config(
        vocab_size=128,
        n_positions=64,
        n_embd=32,
        n_layer=3,
        n_head=4,
        bos_token_id=1,
        eos_token_id=1,
        use_cache=False,
    )
    model = GPT2LMHeadModel(config)
    # model = remate.auto(model)
    texts = [torch.randint(1, 128, (int(n),)) for n in torch.randint(12, 40, (40,))]
    loader = DataLoader(texts[:32], batch_size=4, shuffle=True, collate_fn=collate)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    scheduler = get_linear_schedule_with_warmup(optimizer, 2, len(loader) * args.epochs)
    model, optimizer, loader, scheduler = accelerator.prepare(model, optimizer, loader, scheduler)
    for epoch in range(args.epochs):
        model.train()
        for step, batch in enumerate(loader):
            with accelerator.accumulate(model):
                loss = model(**batch).loss
                accelerator.backward(loss)
                if accelerator.sync_gradients:
                    accelerator.clip_grad_norm_(model.parameters(), 1.0)
                optimizer.step()
                scheduler.step()
                optimizer.zero_grad()
            print(f"epoch {epoch} step {step}: loss {loss.item():.6f}")
        model.eval()
        with torch.no_grad():
            evaluated = sum(model(**collate(texts[at : at + 4])).loss.item() for at in (32, 36)) / 2
        print(f"epoch {epoch}: evaluation loss {evaluated:.6f}")
    if args.save:
        torch.save(accelerator.unwrap_model(model).state_dict(), args.save)


if __name__ == "__main__":
    main()
