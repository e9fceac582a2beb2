"""From chats to token spans: reading rows, rendering, steps, pairs, the data report. No torch here."""
