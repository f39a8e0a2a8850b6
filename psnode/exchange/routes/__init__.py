"""Routes of groups: to which ranks gradients go, and from which rank weights come, by topology."""
