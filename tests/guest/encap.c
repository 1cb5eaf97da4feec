/* Makes UDP port 4500 one of ESP (`UDP_ENCAP` of udp(7)), as an IKE daemon does, and keeps it until it is ended. */
#include <netinet/in.h>
#include <netinet/udp.h>
#include <stdio.h>
#include <sys/socket.h>
#include <unistd.h>

int main(void)
{
    struct sockaddr_in6 any = { .sin6_family = AF_INET6, .sin6_port = htons(4500) };
    int kind = 2; /* UDP_ENCAP_ESPINUDP */
    int socket_of = socket(AF_INET6, SOCK_DGRAM, 0);

    if (socket_of < 0 || bind(socket_of, (struct sockaddr *)&any, sizeof any) ||
        setsockopt(socket_of, IPPROTO_UDP, 100 /* UDP_ENCAP */, &kind, sizeof kind)) {
        perror("encap");
        return 1;
    }
    puts("ready");
    fflush(stdout);
    for (;;)
        pause();
}
