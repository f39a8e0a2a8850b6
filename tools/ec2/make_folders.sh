#!/usr/bin/env bash
# Runs on every node: the folder in which everything lies.
set -euo pipefail
mkdir -p "$1/jobs"
