"""An HTML page about runs or a study."""
