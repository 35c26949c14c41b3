#!/usr/bin/env bash
# Runs warpann beside faiss, hnswlib and usearch in a checkout of VIBE, each on one core as VIBE's run.py does, without
# containers, with the settings of a graph of 32 edges and of inverted files of 1,024 lists.
#
#     benches/vibe/run.sh VIBE_CHECKOUT PYTHON CORE DATASET METRIC [COUNT]
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
checkout=$1 python=$2 core=$3 dataset=$4 metric=$5 count=${6:-100}
cp -r "$here/warpann" "$here/usearch" "$checkout/vibe/algorithms/"
cd "$checkout"
export OMP_NUM_THREADS=1 OPENBLAS_NUM_THREADS=1 NUMBA_NUM_THREADS=1 RAYON_NUM_THREADS=1
beams='[10] [16] [24] [32] [48] [64] [96] [128] [192] [256] [384] [512]'
probes='[1] [2] [4] [8] [16] [32] [64] [128]'
# algorithm, module, constructor, arguments, arguments of searches
run() {
    local algorithm=$1 module=$2 constructor=$3 arguments=$4
    shift 4
    taskset -c "$core" "$python" run_algorithm.py --dataset "$dataset" --algorithm "$algorithm" --module "vibe.algorithms.$module" \
        --constructor "$constructor" --runs 5 --count "$count" "$arguments" "$@"
}
run warpann-graph warpann Graph "[\"$metric\", \"cpu\", 32]" $beams
run warpann-ivf warpann Ivf "[\"$metric\", \"cpu\", 1024, \"flat\"]" $(for p in $probes; do echo "${p%]},0]"; done)
run warpann-ivf-sq8 warpann Ivf "[\"$metric\", \"cpu\", 1024, \"sq8\"]" $(for p in $probes; do echo "${p%]},2]"; done)
run warpann-flat warpann Flat "[\"$metric\", \"cpu\"]" '[true]'
run hnswlib hnswlib HnswLib "[\"$metric\", 16, 200]" $beams
run "hnsw(faiss)" faiss FaissHNSW "[\"$metric\", 16, 200]" $beams
run "ivf(faiss)" faiss FaissIVF "[\"$metric\", 1024]" $probes
run usearch usearch USearch "[\"$metric\", 16, 200]" $beams
