/* A thread that sleeps in an epoll without a connection can be cancelled, with the socket library (LD_PRELOAD) as without. */
#define _GNU_SOURCE
#include <pthread.h>
#include <stdio.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <unistd.h>

static void *sleeper(void *epoll)
{
    struct epoll_event event;

    epoll_wait(*(int *)epoll, &event, 1, -1);
    return NULL;
}

int main(void)
{
    int epoll = epoll_create1(EPOLL_CLOEXEC), event = eventfd(0, 0);
    struct epoll_event wanted = { .events = EPOLLIN };
    pthread_t thread;
    void *end;

    if (epoll_ctl(epoll, EPOLL_CTL_ADD, event, &wanted) || pthread_create(&thread, NULL, sleeper, &epoll))
        return 2;
    usleep(200000);
    alarm(10);
    pthread_cancel(thread);
    pthread_join(thread, &end);
    if (end != PTHREAD_CANCELED)
        return 1;
    /* The epoll is of use afterwards. */
    if (eventfd_write(event, 1) || epoll_wait(epoll, &wanted, 1, 1000) != 1)
        return 3;
    puts("cancelled");
    return 0;
}
