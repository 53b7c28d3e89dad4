"""Figures against their budgets, each measured in one run: this machine is noisy, so only ratios count."""
