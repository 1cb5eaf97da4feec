// What the system moves between two processes (process_vm_writev, process_vm_readv), printed as one line of JSON in GB/s.
//
//   cma --op write|read --size N --seconds S [--cpus A,B]
#define _GNU_SOURCE
#include <sched.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

static double now(void)
{
	struct timespec t;
	clock_gettime(CLOCK_MONOTONIC, &t);
	return (double)t.tv_sec + (double)t.tv_nsec / 1e9;
}

static void pin(int cpu)
{
	cpu_set_t cpus;
	CPU_ZERO(&cpus);
	if (cpu >= 0) {
		CPU_SET(cpu, &cpus);
		sched_setaffinity(0, sizeof cpus, &cpus);
	}
}

int main(int argc, char **argv)
{
	const char *op = "write";
	uint64_t size = 1 << 20;
	double seconds = 0.5;
	int cpus[2] = { -1, -1 };
	for (int i = 1; i + 1 < argc; i += 2) {
		if (!strcmp(argv[i], "--op"))
			op = argv[i + 1];
		else if (!strcmp(argv[i], "--size"))
			size = strtoull(argv[i + 1], NULL, 10);
		else if (!strcmp(argv[i], "--seconds"))
			seconds = atof(argv[i + 1]);
		else if (!strcmp(argv[i], "--cpus"))
			sscanf(argv[i + 1], "%d,%d", &cpus[0], &cpus[1]);
	}
	// Ordinary memory of the heap, at the same address in both; the child's is its own as soon as it writes.
	uint8_t *memory = NULL;
	if (!size || posix_memalign((void **)&memory, 4096, size))
		return 1;
	int ready[2];
	if (pipe(ready))
		return 1;
	pid_t child = fork();
	if (child == 0) {
		prctl(PR_SET_PDEATHSIG, SIGKILL);
		pin(cpus[1]);
		memset(memory, 1, size);
		if (write(ready[1], "", 1) != 1)
			return 1;
		for (;;)
			pause();
	}
	pin(cpus[0]);
	memset(memory, 2, size);
	char byte;
	if (child < 0 || read(ready[0], &byte, 1) != 1)
		return 1;
	int is_read = !strcmp(op, "read");
	uint64_t moved = 0, from = 0;
	double begin = now(), end = 0;
	while (!end || now() < end) {
		struct iovec mine = { memory, size }, theirs = { memory, size };
		ssize_t n = is_read ? process_vm_readv(child, &mine, 1, &theirs, 1, 0) : process_vm_writev(child, &mine, 1, &theirs, 1, 0);
		if (n != (ssize_t)size) {
			perror("cma");
			kill(child, SIGKILL);
			return 1;
		}
		moved += size;
		if (!end && now() > begin + seconds / 4)
			from = moved, begin = now(), end = begin + seconds;
	}
	printf("{\"op\":\"%s\",\"size\":%llu,\"value\":%.4f}\n", op, (unsigned long long)size, (double)(moved - from) / (now() - begin) / 1e9);
	kill(child, SIGKILL);
	waitpid(child, NULL, 0);
	return 0;
}
