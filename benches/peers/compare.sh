#!/usr/bin/env bash
# warpann beside other libraries on one GPU, in one run, on one set of files: appends to one record and prints it side by
# side. Needs python3 with PyTorch. A peer that cannot be imported is left out, with a word, and RAFT where its wheels are
# not given (README.md).
#
# Usage: compare.sh [--parts LIST] [--peers LIST] [--seconds N] GRID DATE OUT [DATA] [TFLOPS]
#   GRID       the program: target/release/warpann-grid
#   DATE       YYYY-MM-DD, for the record
#   OUT        the record, such as benches/record/nvidia-h200/2000-01-01.csv
#   DATA       folder of base.fbin, query.fbin, gt.ibin; made there by clustered.py if it has none (default: a temporary folder)
#   TFLOPS     f16 matrix rate of the GPU, for the floors of exact and inverted-file search
#   --parts    of select,exact,ivf,kmeans,graph: the grids to run (default: all)
#   --peers    of torch,raft,faiss,flashlib,cuvs: who stands beside us (default: all that are there; none: - )
#   --seconds  after so many a peer's program of inverted files or graphs starts no further case (default 120)
# Environment: REVISION, for the record; PYTHON (default python3); RAFT_WHEELS, folder of RAFT's wheels.
set -euo pipefail
usage() {
    sed -n '2,/^set /{/^set /d;s/^# \{0,1\}//;p}' "$0" >&2
    exit 2
}
parts=select,exact,ivf,kmeans,graph peers=torch,raft,faiss,flashlib,cuvs seconds=120
while [[ ${1:-} == --* ]]; do
    [[ $# -ge 2 ]] || usage
    case $1 in
        --parts) parts=$2 ;;
        --peers) peers=$2 ;;
        --seconds) seconds=$2 ;;
        *) usage ;;
    esac
    shift 2
done
[[ $# -ge 3 ]] || usage
grid=$1 date=$2 out=$3 data=${4:-} tflops=${5:-}
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
python=${PYTHON:-python3}
part() { [[ ,$parts, == *,$1,* ]]; }
peer() { [[ ,$peers, == *,$1,* ]]; }
# Whether Python can run the statement; says that the peer is left out if not.
has() {
    "$python" -c "$2" 2> /dev/null && return
    echo "$1 cannot be imported: left out (see $here/README.md)"
    return 1
}
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
ours=("${about[@]}" --device gpu --revision "${REVISION:-}")
failed=0
if part select; then
    "$grid" select "${ours[@]}" || failed=1
    if peer torch; then
        "$python" "$here/torch_topk.py" "${about[@]}" || failed=1
    fi
    if peer raft && [[ -n ${RAFT_WHEELS:-} ]]; then
        "$python" "$here/raft_select.py" --wheels "$RAFT_WHEELS" "${about[@]}" || failed=1
    elif peer raft; then
        echo "RAFT_WHEELS names no folder: RAFT left out (see $here/README.md)"
    fi
fi
if part exact; then
    "$grid" exact "${ours[@]}" "${files[@]}" ${tflops:+--tflops "$tflops"} || failed=1
    if peer faiss && has "FAISS for GPUs" 'import faiss; faiss.StandardGpuResources'; then
        "$python" "$here/faiss_gpu.py" "${about[@]}" "${files[@]}" || failed=1
    fi
fi
if part ivf; then
    "$grid" ivf "${ours[@]}" --data "$data" ${tflops:+--tflops "$tflops"} || failed=1
fi
if part kmeans; then
    "$grid" kmeans "${ours[@]}" --data "$data" ${tflops:+--tflops "$tflops"} || failed=1
fi
if part ivf || part kmeans; then
    both=("${about[@]}" --data "$data" --seconds "$seconds")
    part ivf || both+=(--encodings "")
    part kmeans || both+=(--centroids 0)
    if peer faiss && has "FAISS for GPUs" 'import faiss; faiss.StandardGpuResources'; then
        "$python" "$here/faiss_ivf.py" --device gpu "${both[@]}" || failed=1
    fi
    if peer flashlib && has FlashLib 'import flashlib'; then
        "$python" "$here/flashlib_ivf.py" "${both[@]}" || failed=1
    fi
    if peer cuvs && has cuVS 'import cuvs, rmm'; then
        "$python" "$here/cuvs_ivf.py" "${both[@]}" || failed=1
    fi
fi
if part graph; then
    "$grid" kinds "${ours[@]}" --data "$data" --encodings flat --batches 1,10,100 || failed=1
    both=("${about[@]}" --data "$data" --seconds "$seconds")
    if peer flashlib && has FlashLib 'import flashlib'; then
        "$python" "$here/flashlib_graph.py" "${both[@]}" || failed=1
    fi
    if peer cuvs && has cuVS 'import cuvs, rmm'; then
        "$python" "$here/cuvs_graph.py" "${both[@]}" || failed=1
    fi
fi
echo
"$grid" table "$out"
if part ivf || part kmeans; then
    echo
    "$grid" equal-recall "$out" --anchors "$here/anchors.csv" || failed=1
fi
exit "$failed"
