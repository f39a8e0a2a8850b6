#!/usr/bin/env bash
# Runs on every node: makes the folder that holds everything of psnode.
set -euo pipefail
mkdir -p "$1/jobs"
