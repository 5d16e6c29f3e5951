/* A disk with faults, for LD_PRELOAD: files that read back otherwise than they were written, and syncs that take their time. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

typedef int (*open_function)(const char* path, int flags, ...);
typedef int (*sync_function)(int fd);

/* FAULTY_DISK_FLIPS=PATH: a bit in the middle of this file, when it is opened for reading. */
static void flip(open_function real_open, const char* path) {
  const int fd = real_open(path, O_RDWR);
  struct stat info;
  unsigned char byte;
  if (fd < 0) return;
  if (fstat(fd, &info) == 0 && pread(fd, &byte, 1, info.st_size / 2) == 1) {
    byte ^= 4;
    if (pwrite(fd, &byte, 1, info.st_size / 2) != 1) abort();
  }
  close(fd);
}

int open(const char* path, int flags, ...) {
  open_function real_open;
  const char* flipped = getenv("FAULTY_DISK_FLIPS");
  mode_t mode;
  va_list rest;
  va_start(rest, flags);
  mode = flags & O_CREAT ? va_arg(rest, mode_t) : 0;
  va_end(rest);
  *(void**)&real_open = dlsym(RTLD_NEXT, "open");
  if (flipped != NULL && (flags & O_ACCMODE) == O_RDONLY && strcmp(path, flipped) == 0) flip(real_open, path);
  return real_open(path, flags, mode);
}

/* FAULTY_DISK_SYNC_MS=N: what each fdatasync takes at least. */
int fdatasync(int fd) {
  sync_function real_sync;
  const char* text = getenv("FAULTY_DISK_SYNC_MS");
  const long ms = text == NULL ? 0 : strtol(text, NULL, 10);
  const struct timespec pause = {ms / 1000, ms % 1000 * 1000000};
  nanosleep(&pause, NULL);
  *(void**)&real_sync = dlsym(RTLD_NEXT, "fdatasync");
  return real_sync(fd);
}
