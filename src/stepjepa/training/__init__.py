"""Training: `JEPAConfig` and `JEPATrainer`. It joins forest, model and losses."""
