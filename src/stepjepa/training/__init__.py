"""Training: `JEPAConfig` and `JEPATrainer`. Only here do forest, model and losses meet."""
