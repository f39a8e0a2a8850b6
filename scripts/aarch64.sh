#!/usr/bin/env bash
# Golden payloads on aarch64, the processor of Graviton and other ARM servers: every processor has to write the same bytes. qemu
# emulates this processor. Python comes from Debian's arm64 packages, and wheels have the versions of this clone's environment.
# The system is not changed.
#
#   sudo apt-get install qemu-user-static g++-aarch64-linux-gnu   # on Debian; without the compiler, CUDA text as C++ is skipped
#   scripts/aarch64.sh [PYTEST ARGUMENTS...]                      # default: all golden payloads; kernels compile 20 times as slowly
#
# All results stay in build/aarch64, and the next run reuses them.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

if ! command -v qemu-aarch64-static >/dev/null; then
    echo "aarch64.sh: there is no qemu-aarch64-static: sudo apt-get install qemu-user-static" >&2
    exit 2
fi
venv=$(realpath "${PSNODE_VENV:-.venv}")
here=$PWD/build/aarch64
root=$here/root
site=$here/site

if [[ ! -e $root.complete ]]; then
    rm -rf "$root"
    mkdir -p "$here"/apt/lists/partial "$here"/apt/cache/archives/partial "$root"
    : >"$here/apt/status"
    cat >"$here/apt.conf" <<EOF_CONF
APT::Architecture "arm64";
APT::Architectures { "arm64"; };
APT::Install-Recommends "false";
Dir::State "$here/apt";
Dir::State::status "$here/apt/status";
Dir::Cache "$here/apt/cache";
EOF_CONF
    APT_CONFIG=$here/apt.conf apt-get -qq update
    APT_CONFIG=$here/apt.conf apt-get -qq -y --download-only install python3-minimal libpython3-stdlib libstdc++6
    for package in "$here"/apt/cache/archives/*.deb; do
        dpkg-deb -x "$package" "$root"
    done
    touch "$root.complete"
fi
version=$(cd "$root/usr/bin" && echo python3.*)
version=${version#python3.}

if [[ ! -e $site/complete ]]; then
    packages=(numpy numba llvmlite scipy xxhash crc32c zstandard blosc safetensors hypothesis pytest pytest-timeout click rich)
    mapfile -t pinned < <("$venv/bin/python" -c "
import sys
from importlib.metadata import version
print(*(f'{name}=={version(name)}' for name in sys.argv[1:]), sep='\n')" "${packages[@]}")
    platforms=(--platform manylinux_2_28_aarch64 --platform manylinux_2_27_aarch64 --platform manylinux2014_aarch64)
    "$venv/bin/python" -m pip install -q --target "$site" --upgrade --only-binary=:all: "${platforms[@]}" \
        --python-version "3.$version" --implementation cp --abi "cp3$version" --abi abi3 --abi none "${pinned[@]}"
    touch "$site/complete"
fi

if compiler=$(command -v aarch64-linux-gnu-g++); then
    mkdir -p "$here/bin"
    ln -sf "$compiler" "$here/bin/g++" # the emulated program starts this compiler natively on this processor
fi
if [[ $# -eq 0 ]]; then
    mapfile -t files < <(grep -l "def test.*golden" tests/rows/test_*.py tests/codecs/test_*.py)
    set -- -v "${files[@]}" -k "golden_payload or (golden_bytes and not rewritten)"
fi
export PYTHONDONTWRITEBYTECODE=1 NUMBA_CACHE_DIR=$here/kernels PYTHONPATH=$site:$PWD PATH=$here/bin:/usr/bin:/bin
exec qemu-aarch64-static -L "$root" "$root/usr/bin/python3.$version" -P -m pytest -p no:cacheprovider --timeout 0 "$@"
