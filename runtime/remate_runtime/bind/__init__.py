"""The live model against what a schedule was planned for: parameters, buffers, inputs, outputs. Needs torch."""
