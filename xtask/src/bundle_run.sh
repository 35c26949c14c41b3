#!/usr/bin/env bash
# Runs warpann's tests and programs on a GPU host. Needs bash, tar and xz; no Rust, no CUDA toolkit, no network.
set -euo pipefail

usage() {
    cat <<'END'
run.sh                    everything: device, program, verify, all tests with WARPANN_REQUIRE_GPU=1
run.sh test [ARGS]        the tests only; ARGS go to every test program (a filter, --nocapture ..)
run.sh verify [ARGS]      warpann verify (--repeat 1000000 --device gpu: as many searches, each compared with the CPU's to the bit)
run.sh sanitize           the small scenarios of several streams and threads under compute-sanitizer: memcheck, then racecheck
run.sh warpann ARGS       the program
run.sh bin NAME ARGS      another program of the bundle
run.sh list               what the bundle holds

WARPANN_BUNDLE_DIR  where to unpack (default: a fresh temporary folder, removed at the end)
WARPANN_RUNNER      put before every program, e.g. "compute-sanitizer --tool memcheck --error-exitcode 1"

WARPANN_PORTABLE_KERNELS  0 or 1: on compute capability 9.0, only its own kernels or only those of all devices (the GPU table runs both)
WARPANN_SANITIZER         compute-sanitizer, where it is neither in PATH nor in /usr/local/cuda*
WARPANN_SANITIZE_SECONDS  most seconds for one tool with one set of kernels (default: 240); what takes longer has failed
END
}

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
if [[ ${1:-} == --help || ${1:-} == -h ]]; then
    usage
    exit 0
fi

if [[ -n ${WARPANN_BUNDLE_DIR:-} ]]; then
    folder=$WARPANN_BUNDLE_DIR
    mkdir -p "$folder"
else
    folder=$(mktemp -d)
    trap 'rm -rf "$folder"' EXIT
fi
# A folder that was unpacked before serves again, unless the archive is newer.
if [[ ! -e $folder/unpacked || $here/warpann.tar.xz -nt $folder/unpacked ]]; then
    tar -xJf "$here/warpann.tar.xz" -C "$folder"
    touch "$folder/unpacked"
fi

export WARPANN_REQUIRE_GPU=1
# Where the tests look for their data, and for the program.
export WARPANN_TEST_DATA=$folder/data
export WARPANN_PROGRAM=$folder/bin/warpann
read -r -a runner <<<"${WARPANN_RUNNER:-}"

# Runs a program behind the runner, if there is one.
launch() {
    "${runner[@]}" "$@"
}

# Every test program; goes on after a failure and reports all that failed.
run_tests() {
    local failed=() program
    for program in "$folder"/tests/*; do
        echo "== ${program##*/}"
        launch "$program" "$@" || failed+=("${program##*/}")
    done
    if ((${#failed[@]})); then
        echo "FAILED: ${failed[*]}"
        return 1
    fi
    echo "all test programs passed"
}

# The compute-sanitizer to use.
find_sanitizer() {
    local program
    for program in "${WARPANN_SANITIZER:-}" "$(command -v compute-sanitizer || true)" \
        /usr/local/cuda*/bin/compute-sanitizer /usr/local/cuda*/compute-sanitizer/compute-sanitizer /opt/cuda/bin/compute-sanitizer; do
        if [[ -n $program && -x $program ]]; then
            echo "$program"
            return
        fi
    done
    echo "no compute-sanitizer; WARPANN_SANITIZER can name it" >&2
    return 1
}

# The scenarios made for it, under each tool with each set of kernels, each bounded in time; goes on after a failure.
run_sanitizer() {
    local sanitizer tool portable status failed=() seconds=${WARPANN_SANITIZE_SECONDS:-240}
    sanitizer=$(find_sanitizer)
    if [[ $("$folder/tests/tests-gpu-test" --list sanitize::) != *sanitize::* ]]; then
        echo "no scenario is called sanitize::" >&2
        return 1
    fi
    for tool in memcheck racecheck; do
        for portable in ${WARPANN_PORTABLE_KERNELS:-0 1}; do
            echo "== $tool, WARPANN_PORTABLE_KERNELS=$portable"
            status=0
            WARPANN_PORTABLE_KERNELS=$portable timeout --kill-after 10 "$seconds" \
                "$sanitizer" --tool "$tool" --error-exitcode 86 --print-limit 20 \
                "$folder/tests/tests-gpu-test" sanitize:: --test-threads 1 || status=$?
            case $status in
            0) echo "ok" ;;
            124 | 137) failed+=("$tool $portable: not done in $seconds s") ;;
            86) failed+=("$tool $portable: found errors") ;;
            *) failed+=("$tool $portable: exit status $status") ;;
            esac
        done
    done
    if ((${#failed[@]})); then
        printf 'FAILED: %s\n' "${failed[@]}"
        return 1
    fi
    echo "no errors"
}

case ${1:-all} in
all)
    status=0
    launch "$WARPANN_PROGRAM" info || status=1
    sample=$folder/data/sift-sample
    launch "$WARPANN_PROGRAM" search --base "$sample/sample_base.bvecs" --query "$sample/sample_query.bvecs" \
        --gt "$sample/sample_gt.ivecs" --k 10 --device gpu || status=1
    launch "$WARPANN_PROGRAM" verify || status=1
    run_tests || status=1
    exit "$status"
    ;;
test)
    shift
    run_tests "$@"
    ;;
verify) launch "$WARPANN_PROGRAM" "$@" ;;
sanitize) run_sanitizer ;;
warpann)
    shift
    launch "$WARPANN_PROGRAM" "$@"
    ;;
bin)
    name=$2
    shift 2
    launch "$folder/bin/$name" "$@"
    ;;
list) (cd "$folder" && find bin tests -type f | sort) ;;
*)
    usage >&2
    exit 2
    ;;
esac
