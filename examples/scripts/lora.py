"""Fine-tuning of a language model with LoRA from PEFT: frozen weights, labels with padding, only adapters are saved."""

import argparse

import torch
from peft import LoraConfig, get_peft_model, get_peft_model_state_dict
from torch.utils.data import DataLoader
from transformers import LlamaConfig, LlamaForCausalLM, get_linear_schedule_with_warmup


def collate(examples):
    length = max(len(e) for e in examples)
    ids = torch.zeros(len(examples), length, dtype=torch.long)
    mask = torch.zeros_like(ids)
    for row, example in enumerate(examples):
        ids[row, : len(example)] = example
        mask[row, : len(example)] = 1
    return {"input_ids": ids, "attention_mask": mask, "labels": ids.masked_fill(mask == 0, -100)}


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--save", default="")
    args = parser.parse_args()
    torch.manual_seed(42)
    config = LlamaConfig(
        vocab_size=128,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=64,
        use_cache=False,
    )
    model = LlamaForCausalLM(config)
    peft_config = LoraConfig(
        r=4, lora_alpha=16, lora_dropout=0.1, target_modules=["q_proj", "v_proj"], task_type="CAUSAL_LM"
    )
    model = get_peft_model(model, peft_config)
    model.print_trainable_parameters()
    # model = remate.auto(model)
    texts = [torch.randint(1, 128, (int(n),)) for n in torch.randint(12, 24, (16,))]
    loader = DataLoader(texts, batch_size=4, shuffle=True, collate_fn=collate)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    scheduler = get_linear_schedule_with_warmup(optimizer, 2, len(loader) * args.epochs)
    for epoch in range(args.epochs):
        model.train()
        for step, batch in enumerate(loader):
            outputs = model(**batch)
            loss = outputs.loss
            loss.backward()
            optimizer.step()
            scheduler.step()
            optimizer.zero_grad()
            print(f"epoch {epoch} step {step}: loss {loss.detach().float().item():.6f}")
        model.eval()
        with torch.no_grad():
            evaluated = model(**collate(texts[:4])).loss
        print(f"epoch {epoch}: evaluation loss {evaluated.item():.6f}")
    if args.save:
        torch.save(get_peft_model_state_dict(model), args.save)


if __name__ == "__main__":
    main()
