/* The wall clock, and nothing but the wall clock, of the processes this is preloaded into: off by the seconds that
   stand in the file WALL_CLOCK, read anew each time. Monotonic time, sleeps and timers stay what they are; who waits
   for a wall-clock time waits as long as would be right. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <pthread.h>
#include <semaphore.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

static long offset_s(void)
{
    char text[32] = "0";
    const char *path = getenv("WALL_CLOCK");
    int file = path ? open(path, O_RDONLY | O_CLOEXEC) : -1;
    if (file >= 0) {
        ssize_t length = read(file, text, sizeof text - 1);
        text[length > 0 ? length : 0] = 0;
        close(file);
    }
    return atol(text);
}

int clock_gettime(clockid_t clock, struct timespec *now)
{
    int failed = (int)syscall(SYS_clock_gettime, clock, now);
    if (!failed && (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE))
        now->tv_sec += offset_s();
    return failed;
}

time_t time(time_t *to)
{
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    if (to)
        *to = now.tv_sec;
    return now.tv_sec;
}

int gettimeofday(struct timeval *restrict to, void *restrict zone)
{
    struct timespec now;
    (void)zone;
    clock_gettime(CLOCK_REALTIME, &now);
    to->tv_sec = now.tv_sec;
    to->tv_usec = now.tv_nsec / 1000;
    return 0;
}

int pthread_cond_timedwait(pthread_cond_t *restrict condition, pthread_mutex_t *restrict mutex,
                           const struct timespec *restrict until)
{
    struct timespec real = {until->tv_sec - offset_s(), until->tv_nsec};
    int (*next)(pthread_cond_t *, pthread_mutex_t *, clockid_t, const struct timespec *);
    *(void **)&next = dlsym(RTLD_NEXT, "pthread_cond_clockwait");
    /* a condition that was made for the monotonic clock has deadlines far in the past of the wall clock */
    return until->tv_sec < 100000000 ? next(condition, mutex, CLOCK_MONOTONIC, until)
                                     : next(condition, mutex, CLOCK_REALTIME, &real);
}

int sem_timedwait(sem_t *restrict semaphore, const struct timespec *restrict until)
{
    struct timespec real = {until->tv_sec - offset_s(), until->tv_nsec};
    int (*next)(sem_t *, clockid_t, const struct timespec *);
    *(void **)&next = dlsym(RTLD_NEXT, "sem_clockwait");
    return next(semaphore, CLOCK_REALTIME, &real);
}
