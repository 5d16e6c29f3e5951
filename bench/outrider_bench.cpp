// outrider_bench: the suite as a program.
#include "bench/suite.h"

int main(int argc, char** argv) { return otr::bench::bench_main(argc, argv, nullptr); }
