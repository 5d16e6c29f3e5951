/* A disk with faults, for LD_PRELOAD: files that read back otherwise than they were written, or not at all, and syncs that take their
 * time. And a record of what was on disk when a file went. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

typedef int (*open_function)(const char* path, int flags, ...);
typedef int (*sync_function)(int fd);
typedef int (*unlink_function)(const char* path);
typedef ssize_t (*read_function)(int fd, void* data, size_t size, off_t offset);

/* FAULTY_DISK_FLIPS=PATH: a bit in the middle of this file, or of one that is to take its place (PATH.xxxxxx), when it is opened for
 * reading. */
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

static int is_at(const char* path, const char* place) {
  const size_t length = strlen(place);
  return strncmp(path, place, length) == 0 && (path[length] == '\0' || (path[length] == '.' && strlen(path) == length + 7));
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
  if (flipped != NULL && (flags & O_ACCMODE) == O_RDONLY && is_at(path, flipped)) flip(real_open, path);
  return real_open(path, flags, mode);
}

/* FAULTY_DISK_RECORD=FILE: gets a line for each fdatasync and fsync, "sync SIZE PATH" (of folders SIZE is -), and each file that is
 * unlinked, "unlink PATH". */
static void record(const char* what, const char* path) {
  const char* file = getenv("FAULTY_DISK_RECORD");
  FILE* out = file == NULL ? NULL : fopen(file, "a");
  if (out == NULL) return;
  fprintf(out, "%s %s\n", what, path);
  fclose(out);
}

/* The path of an open file; 0 if it has none. */
static int path_of(int fd, char* path, size_t size) {
  char link[64];
  ssize_t length;
  snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
  length = readlink(link, path, size - 1);
  path[length > 0 ? length : 0] = '\0';
  return length > 0;
}

int unlink(const char* path) {
  unlink_function real_unlink;
  record("unlink", path);
  *(void**)&real_unlink = dlsym(RTLD_NEXT, "unlink");
  return real_unlink(path);
}

static void record_sync(int fd) {
  struct stat info;
  char path[4096], what[32] = "sync -";
  if (!path_of(fd, path, sizeof path) || fstat(fd, &info) != 0) return;
  if (!S_ISDIR(info.st_mode)) snprintf(what, sizeof what, "sync %lld", (long long)info.st_size);
  record(what, path);
}

int fsync(int fd) {
  sync_function real_sync;
  record_sync(fd);
  *(void**)&real_sync = dlsym(RTLD_NEXT, "fsync");
  return real_sync(fd);
}

/* FAULTY_DISK_SYNC_MS=N: what each fdatasync takes at least. */
int fdatasync(int fd) {
  sync_function real_sync;
  const char* text = getenv("FAULTY_DISK_SYNC_MS");
  const long ms = text == NULL ? 0 : strtol(text, NULL, 10);
  const struct timespec pause = {ms / 1000, ms % 1000 * 1000000};
  nanosleep(&pause, NULL);
  record_sync(fd);
  *(void**)&real_sync = dlsym(RTLD_NEXT, "fdatasync");
  return real_sync(fd);
}

/* FAULTY_DISK_EIO=PATH: what lies from byte FAULTY_DISK_EIO_FROM of this file on cannot be read. */
ssize_t pread(int fd, void* data, size_t size, off_t offset) {
  read_function real_read;
  const char* unreadable = getenv("FAULTY_DISK_EIO");
  const char* from = getenv("FAULTY_DISK_EIO_FROM");
  char path[4096];
  *(void**)&real_read = dlsym(RTLD_NEXT, "pread");
  if (unreadable != NULL && offset + (off_t)size > (from == NULL ? 0 : strtol(from, NULL, 10))) {
    if (path_of(fd, path, sizeof path) && strcmp(path, unreadable) == 0) {
      errno = EIO;
      return -1;
    }
  }
  return real_read(fd, data, size, offset);
}
