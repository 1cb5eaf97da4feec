// The header in C++: a packet there and back, and the words of an error.
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <millrace.h>

int main()
{
    millrace_device *device = nullptr;
    if (millrace_open("nonsense", &device) >= 0 || device || !std::strstr(millrace_last_error(), "nonsense"))
        return 1;
    millrace_rx *rx = nullptr;
    millrace_tx *tx = nullptr;
    if (millrace_open("embedded", &device) < 0 || millrace_rx_open(device, 0, MILLRACE_OPEN_SHARED_BLOCK, &rx) < 0 ||
        millrace_tx_open(device, 0, 0, &tx) < 0 || millrace_rx_start(rx) < 0 || millrace_tx_start(tx) < 0) {
        std::puts(millrace_last_error());
        return 1;
    }
    const std::uint16_t length = 100;
    millrace_packet packet;
    if (millrace_tx_burst_get(tx, &length, &packet, 1) != 1)
        return 2;
    std::memset(packet.data, 42, packet.data_len);
    millrace_tx_burst_put(tx);
    millrace_tx_flush(tx);
    if (millrace_rx_wait(rx, 5'000'000'000) != 1 || millrace_rx_burst_get(rx, &packet, 1) != 1)
        return 3;
    const bool same = packet.data_len == length && packet.data[0] == 42 && packet.data[99] == 42;
    const bool closed = millrace_tx_close(tx) == 0 && millrace_rx_close(rx) == 0 && millrace_close(device) == 0;
    return same && closed ? 0 : 4;
}
