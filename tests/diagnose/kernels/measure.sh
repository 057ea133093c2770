#!/bin/bash
# Compiles kernels.cu, runs it under Nsight Compute, leaves ncu.tar.gz in $OUT or ./out. Under 90 s on an H200. h200.csv is raw.csv of
# one such run (H200, Nsight Compute 2025.3.1, 2026-11-17), without the columns that nobody reads.
# Where the counters are not allowed (ERR_NVGPUCTRPERM) the files hold ncu's message; they are kept too.
set -u
here=$(cd "$(dirname "$0")" && pwd)
work=$(mktemp -d)
export PATH=$PATH:/usr/local/cuda/bin:$(ls -d /opt/nvidia/nsight-compute/* 2>/dev/null | tail -1)
cd "$work" || exit 1
nvcc -O3 -arch=sm_90 -lineinfo "$here/kernels.cu" -o kernels || exit 1
ncu --version > version.txt 2>&1
nvidia-smi --query-gpu=name,driver_version --format=csv > card.txt 2>&1
time ./kernels > plain.txt 2>&1
common="--clock-control none"
time timeout 60 ncu $common --set full -f -o full ./kernels > full.log 2>&1
if [ -f full.ncu-rep ]; then
    ncu -i full.ncu-rep --page raw --csv > raw.csv 2>&1
    ncu -i full.ncu-rep --page details --csv > details.csv 2>&1
    ncu -i full.ncu-rep --page details --print-units base --csv > details_base.csv 2>&1
    ncu -i full.ncu-rep --page raw --print-units base --csv > raw_base.csv 2>&1
fi
# Directly to CSV: with the ==PROF== lines and the program's own output between them.
timeout 30 ncu $common --section SpeedOfLight --section WarpStateStats --section Occupancy --page raw --csv ./kernels > subset.csv 2>&1
timeout 20 ncu $common --section LaunchStats --section Occupancy --launch-count 3 --page details --csv ./kernels > live_details.csv 2>&1
if command -v nsys > /dev/null; then
    timeout 40 nsys profile -t cuda -o sys -f true ./kernels > nsys.log 2>&1
    nsys export -t sqlite -o sys.sqlite -f true sys.nsys-rep >> nsys.log 2>&1
fi
ls -la
tar czf "${OUT:-$here/out}/ncu.tar.gz" --exclude=kernels --exclude='*.nsys-rep' --exclude='full.ncu-rep' .
ls -la "${OUT:-$here/out}/ncu.tar.gz"
