"""Routes of groups, by topology: to which ranks gradients go, and from which rank weights come."""
