#!/bin/sh
# What of requirements.lock (standard input) a variant of the image installs: cuda all of it, cpu what has nothing to do
# with CUDA, torch the packages (name==version, without hashes) whose CPU builds replace those of the lock.
set -eu
case "${1:-}" in
cuda) cat ;;
cpu) awk '/^[a-zA-Z0-9]/ { left_out = /^(torch|torchvision|triton|nvidia-|cuda-)/ } !left_out' ;;
torch) awk '/^(torch|torchvision)==/ { print $1 }' ;;
*)
    echo "usage: lock_of.sh cuda|cpu|torch < requirements.lock, got '${1:-}'" >&2
    exit 2
    ;;
esac
