"""GPU gangs for notebook cells: from Slurm, Kubernetes or this machine."""
