#!/usr/bin/env bash
# Generates minka/v1/*_pb2* from protos/minka/v1/*.proto.
#   tools/protos.sh write   brings the tree up to date
#   tools/protos.sh check   fails if the tree isn't up to date, and names the files
set -euo pipefail
cd "$(dirname "$0")/.."
export PATH="$PWD/.venv/bin:$PATH" # protoc finds its mypy plugins there

fresh=$(mktemp -d)
trap 'rm -rf "$fresh"' EXIT
python -m grpc_tools.protoc -Iprotos \
  --python_out="$fresh" --grpc_python_out="$fresh" --mypy_out=quiet:"$fresh" --mypy_grpc_out=quiet:"$fresh" \
  protos/minka/v1/*.proto
for proto in $(grep -L '^service ' protos/minka/v1/*.proto); do # the plugins write empty modules for these
  rm -f "$fresh/minka/v1/$(basename "$proto" .proto)"_pb2_grpc.py*
done

# Unchanged files keep their time stamps, and generated files that no longer have a .proto are removed.
stale=0
for name in $({ ls "$fresh/minka/v1"; ls minka/v1; } | grep '_pb2' | sort -u); do
  cmp -s "$fresh/minka/v1/$name" "minka/v1/$name" && continue
  stale=1
  case "${1:-}" in
    write) rm -f "minka/v1/$name"; [ ! -e "$fresh/minka/v1/$name" ] || cp "$fresh/minka/v1/$name" minka/v1/; echo "minka/v1/$name" ;;
    check) echo "stale: minka/v1/$name" >&2 ;;
    *) echo "usage: tools/protos.sh write|check" >&2; exit 2 ;;
  esac
done
if [ "$stale" = 1 ] && [ "${1:-}" = check ]; then
  echo "generated code differs from protos/: run 'make protos' and commit the result" >&2
  exit 1
fi
