"""Classification of the nodes of a graph by graph attention: scatter over an edge list, a mask of the nodes that
train."""

import argparse

import torch
import torch.nn as nn
import torch.nn.functional as F


class GATLayer(nn.Module):
    def __init__(self, in_features, out_features, heads, concat=True, dropout=0.3):
        super().__init__()
        self.heads, self.out_features, self.concat, self.dropout = heads, out_features, concat, dropout
        self.W = nn.Linear(in_features, heads * out_features, bias=False)
        self.source = nn.Parameter(torch.empty(1, heads, out_features))
        self.target = nn.Parameter(torch.empty(1, heads, out_features))
        nn.init.xavier_uniform_(self.source)
        nn.init.xavier_uniform_(self.target)

    def forward(self, x, edge_index):
        n = x.size(0)
        src, dst = edge_index
        h = self.W(F.dropout(x, self.dropout, self.training)).view(n, self.heads, self.out_features)
        scores = F.leaky_relu((h * self.source).sum(-1)[src] + (h * self.target).sum(-1)[dst], 0.2)
        scores = (scores - scores.max()).exp()
        total = torch.zeros(n, self.heads, dtype=x.dtype, device=x.device).index_add_(0, dst, scores)
        alpha = F.dropout(scores / (total[dst] + 1e-16), self.dropout, self.training)
        out = torch.zeros_like(h).index_add_(0, dst, alpha.unsqueeze(-1) * h[src])
        return out.flatten(1) if self.concat else out.mean(1)


class GAT(nn.Module):
    def __init__(self, in_features, n_hidden, n_heads, num_classes):
        super().__init__()
        self.gat1 = GATLayer(in_features, n_hidden, n_heads)
        self.gat2 = GATLayer(n_hidden * n_heads, num_classes, 1, concat=False)

    def forward(self, x, edge_index):
        x = F.elu(self.gat1(x, edge_index))
        return F.log_softmax(self.gat2(x, edge_index), dim=1)


def accuracy(output, labels):
    return output.max(1)[1].eq(labels).double().mean().item()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=8)
    parser.add_argument("--save", default="")
    args = parser.parse_args()
    torch.manual_seed(13)
    nodes, features, classes = 300, 40, 7
    x = torch.rand(nodes, features)
    labels = torch.randint(0, classes, (nodes,))
    edges = torch.randint(0, nodes, (2, 1500))
    edge_index = torch.cat([edges, torch.arange(nodes).repeat(2, 1)], dim=1)
    train_mask = torch.rand(nodes) < 0.5

    model = GAT(features, 8, 4, classes)
    # model = remate.auto(model)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.005, weight_decay=5e-4)
    for epoch in range(args.epochs):
        model.train()
        optimizer.zero_grad()
        out = model(x, edge_index)
        loss = F.nll_loss(out[train_mask], labels[train_mask])
        loss.backward()
        optimizer.step()
        model.eval()
        with torch.no_grad():
            out = model(x, edge_index)
        print(f"epoch {epoch}: loss {loss.item():.6f}, accuracy {accuracy(out[~train_mask], labels[~train_mask]):.4f}")
    if args.save:
        torch.save(model.state_dict(), args.save)


if __name__ == "__main__":
    main()
