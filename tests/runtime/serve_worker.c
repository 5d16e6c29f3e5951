/* The smallest worker executable: what a user without the command line program would build. */
#include <stdlib.h>

#include "runtime/outrider.h"

int main(int argc, char** argv) { return argc == 3 && otr_serve_worker(atoi(argv[2])) == OTR_OK ? 0 : 1; }
