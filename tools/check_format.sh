#!/bin/sh
# Checks the layout of all C files with clang-format 14 (Debian 12's), by .clang-format at the root.
# Usage: tools/check_format.sh [ROOT]   exit 0 clean, 1 findings, 77 no clang-format 14
# To repair a file: clang-format-14 -i FILE
set -eu

root=${1:-$(CDPATH='' cd -- "$(dirname -- "$0")/.." && pwd)}
cd "$root"
for tool in clang-format-14 clang-format; do
    case $("$tool" --version 2>/dev/null || true) in
    *'version 14.'*) break ;;
    esac
    tool=''
done
if [ -z "$tool" ]; then
    echo 'check_format: skipped, needs clang-format 14 (Debian package clang-format)'
    exit 77
fi
list=$(mktemp)
trap 'rm -f "$list"' EXIT
for folder in src include tests bench tools; do
    [ -d "$folder" ] && find "$folder" -name '*.[ch]' -print
done | LC_ALL=C sort >"$list"
count=$(wc -l <"$list")
if [ "$count" -gt 0 ] && ! xargs -n 24 -P 2 "$tool" --dry-run -Werror <"$list"; then
    echo "check_format: files above differ from .clang-format; repair with: $tool -i FILE"
    exit 1
fi
echo "check_format: ok, $count files"
