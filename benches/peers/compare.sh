#!/usr/bin/env bash
# warpann beside FAISS, RAFT and torch.topk on one GPU, in one session, on one set of files: appends to one record and
# prints it side by side. Needs python3 with PyTorch. FAISS is left out, with a word, where it cannot be imported, RAFT
# where its wheels are not given (README.md).
#
# Usage: compare.sh GRID DATE OUT [DATA] [TFLOPS]
#   GRID    the program: target/release/warpann-grid
#   DATE    YYYY-MM-DD, for the record
#   OUT     the record, such as benches/record/nvidia-h200/2000-01-01.csv
#   DATA    folder of base.fbin, query.fbin, gt.ibin; made there by clustered.py if it has none (default: a temporary folder)
#   TFLOPS  f16 matrix rate of the GPU, for the floor of exact search
# Environment: REVISION, for the record; PYTHON (default python3); RAFT_WHEELS, folder of RAFT's wheels.
set -euo pipefail
if [[ $# -lt 3 ]]; then
    sed -n '2,/^set /{/^set /d;s/^# \{0,1\}//;p}' "$0" >&2
    exit 2
fi
grid=$1 date=$2 out=$3 data=${4:-} tflops=${5:-}
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
python=${PYTHON:-python3}
if [[ -z $data ]]; then
    data=$(mktemp -d)
    trap 'rm -rf "$data"' EXIT
fi
if [[ ! -e $data/base.fbin || ! -e $data/query.fbin || ! -e $data/gt.ibin ]]; then
    echo "making the standard set in $data"
    "$python" "$here/clustered.py" "$data"
fi
files=(--base "$data/base.fbin" --query "$data/query.fbin" --gt "$data/gt.ibin")
about=(--date "$date" --out "$out")
failed=0
"$grid" select "${about[@]}" --device gpu --revision "${REVISION:-}" || failed=1
"$grid" exact "${about[@]}" --device gpu --revision "${REVISION:-}" "${files[@]}" ${tflops:+--tflops "$tflops"} || failed=1
"$python" "$here/torch_topk.py" "${about[@]}" || failed=1
if [[ -n ${RAFT_WHEELS:-} ]]; then
    "$python" "$here/raft_select.py" --wheels "$RAFT_WHEELS" "${about[@]}" || failed=1
else
    echo "RAFT_WHEELS names no folder: RAFT left out (see $here/README.md)"
fi
if "$python" -c 'import faiss; faiss.StandardGpuResources' 2> /dev/null; then
    "$python" "$here/faiss_gpu.py" "${about[@]}" "${files[@]}" || failed=1
else
    echo "FAISS for GPUs cannot be imported: left out (see $here/README.md)"
fi
echo
"$grid" table "$out"
exit "$failed"
