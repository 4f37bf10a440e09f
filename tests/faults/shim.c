/* A disk that is slow, fails or cannot lock, and a clock that jumps: preloaded into a process under test.

   SHIM_UNDER       what follows holds for files whose path begins so
   SHIM_DELAY_MS    every write, truncation and sync takes so long
   SHIM_EIO_AT      the so-many-th write fails (EIO), and all after it
   SHIM_FCNTL       record locks (SQLite's) fail with this errno
   SHIM_FLOCK       file locks fail with this errno; 0: they are given to everybody
   SHIM_CLOCK       a file of eight bytes: seconds by which the clock of the day is off, read anew at every look;
                    the monotonic clock is left alone */

#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

#define REAL(name) ((__typeof__(&name))dlsym(RTLD_NEXT, #name))

static int is_under(int fd) {
  char link[64], path[4096];
  const char* under = getenv("SHIM_UNDER");
  if (!under) return 0;
  snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
  ssize_t n = readlink(link, path, sizeof path - 1);
  if (n < 0) return 0;
  path[n] = 0;
  return strncmp(path, under, strlen(under)) == 0;
}

static int fails(int fd, int writes) {
  static int written;
  const char *delay = getenv("SHIM_DELAY_MS"), *at = getenv("SHIM_EIO_AT");
  if ((!delay && !at) || !is_under(fd)) return 0;
  if (delay) usleep((useconds_t)atoi(delay) * 1000);
  if (at && writes && __atomic_add_fetch(&written, 1, __ATOMIC_SEQ_CST) >= atoi(at)) {
    errno = EIO;
    return 1;
  }
  return 0;
}

ssize_t write(int fd, const void* data, size_t size) { return fails(fd, 1) ? -1 : REAL(write)(fd, data, size); }
ssize_t pwrite(int fd, const void* data, size_t size, off_t at) { return fails(fd, 1) ? -1 : REAL(pwrite)(fd, data, size, at); }
ssize_t pwrite64(int fd, const void* data, size_t size, off64_t at) {
  return fails(fd, 1) ? -1 : REAL(pwrite64)(fd, data, size, at);
}
int fsync(int fd) { return fails(fd, 0) ? -1 : REAL(fsync)(fd); }
int fdatasync(int fd) { return fails(fd, 0) ? -1 : REAL(fdatasync)(fd); }

int flock(int fd, int operation) {
  const char* told = getenv("SHIM_FLOCK");
  if (!told || !is_under(fd)) return REAL(flock)(fd, operation);
  if (atoi(told) == 0) return 0;
  errno = atoi(told);
  return -1;
}

static int lock_fails(int fd, int command) {
  const char* told = getenv("SHIM_FCNTL");
  if (!told || (command != F_SETLK && command != F_SETLKW && command != F_OFD_SETLK) || !is_under(fd)) return 0;
  errno = atoi(told);
  return 1;
}

int fcntl(int fd, int command, ...) {
  va_list rest;
  va_start(rest, command);
  void* argument = va_arg(rest, void*);
  va_end(rest);
  return lock_fails(fd, command) ? -1 : REAL(fcntl)(fd, command, argument);
}

int fcntl64(int fd, int command, ...) {
  va_list rest;
  va_start(rest, command);
  void* argument = va_arg(rest, void*);
  va_end(rest);
  return lock_fails(fd, command) ? -1 : REAL(fcntl64)(fd, command, argument);
}

static int64_t off_by(void) {
  static volatile int64_t* seconds;
  const char* path = getenv("SHIM_CLOCK");
  if (!path) return 0;
  if (!seconds) {
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0) return 0;
    void* at = mmap(NULL, sizeof *seconds, PROT_READ, MAP_SHARED, fd, 0);
    close(fd);
    if (at == MAP_FAILED) return 0;
    seconds = at;
  }
  return *seconds;
}

int clock_gettime(clockid_t clock, struct timespec* now) {
  int result = REAL(clock_gettime)(clock, now);
  if (result == 0 && (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE)) now->tv_sec += off_by();
  return result;
}

int gettimeofday(struct timeval* now, void* zone) {
  int result = REAL(gettimeofday)(now, zone);
  if (result == 0) now->tv_sec += off_by();
  return result;
}

time_t time(time_t* at) {
  struct timespec now;
  clock_gettime(CLOCK_REALTIME, &now);
  if (at) *at = now.tv_sec;
  return now.tv_sec;
}
