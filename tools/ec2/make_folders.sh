#!/usr/bin/env bash
# Runs on every node: makes the folder for all files of psnode.
set -euo pipefail
mkdir -p "$1/jobs"
