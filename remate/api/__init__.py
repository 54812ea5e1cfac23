"""What `import remate` offers: plan a model under one budget (`plan`) or under many (`frontier`)."""
