"""Training: `JEPAConfig` and `JEPATrainer`. The one place where forest, model and losses meet."""
