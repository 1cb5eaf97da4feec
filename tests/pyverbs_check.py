"""pyverbs over a card: two connected queue pairs of one process write, read, add and send, by both kinds of completion queue; what is
refused is an error. Prints what was done; an exception is a failure."""

import time

import pyverbs.enums as e
from pyverbs.addr import AHAttr, GlobalRoute
from pyverbs.cq import CQ, CQEX, CqInitAttrEx, PollCqAttr
from pyverbs.device import Context, get_device_list
from pyverbs.mr import MR
from pyverbs.pd import PD
from pyverbs.pyverbs_error import PyverbsRDMAError
from pyverbs.qp import QP, QPAttr, QPCap, QPInitAttr
from pyverbs.wr import SGE, RecvWR, SendWR

LEN = 8192
ALL = e.IBV_ACCESS_LOCAL_WRITE | e.IBV_ACCESS_REMOTE_WRITE | e.IBV_ACCESS_REMOTE_READ | e.IBV_ACCESS_REMOTE_ATOMIC


def make(pd, cq):
    cap = QPCap(max_send_wr=16, max_recv_wr=16, max_send_sge=1, max_recv_sge=1)
    return QP(pd, QPInitAttr(qp_type=e.IBV_QPT_RC, scq=cq, rcq=cq, cap=cap, sq_sig_all=1), QPAttr())


def connect(context, qp, other):
    attr = QPAttr(port_num=1)
    attr.qp_access_flags = ALL
    qp.to_init(attr)
    route = GlobalRoute(dgid=context.query_gid(port_num=1, index=0), sgid_index=0, hop_limit=1)
    attr = QPAttr(port_num=1)
    attr.path_mtu = e.IBV_MTU_1024
    attr.dest_qp_num = other.qp_num
    attr.max_dest_rd_atomic = attr.max_rd_atomic = 4
    attr.min_rnr_timer, attr.timeout, attr.retry_cnt, attr.rnr_retry = 12, 14, 7, 7
    attr.ah_attr = AHAttr(port_num=1, is_global=1, gr=route)
    qp.to_rts(attr)


def ended(cq, count):
    """Waits for completions: (wr_id, opcode, byte_len, status) of each."""
    lines, until = [], time.monotonic() + 20
    while len(lines) < count:
        assert time.monotonic() < until, "no completion within 20 s"
        if isinstance(cq, CQEX):
            if cq.start_poll(PollCqAttr()) == 0:
                lines.append((cq.wr_id, cq.read_opcode(), cq.read_byte_len(), cq.status))
                cq.end_poll()
        else:
            lines += [(wc.wr_id, wc.opcode, wc.byte_len, wc.status) for wc in cq.poll(1)[1]]
    return lines


def drive(context, cq):
    pd = PD(context)
    left, right = make(pd, cq), make(pd, cq)
    connect(context, left, right)
    connect(context, right, left)
    ours, theirs = MR(pd, LEN, ALL), MR(pd, LEN, ALL)
    own = lambda offset, length: [SGE(ours.buf + offset, length, ours.lkey)]

    def request(number, opcode, sge, offset=0, **atomic):
        work = SendWR(wr_id=number, opcode=opcode, num_sge=len(sge), sg=sge)
        if atomic:
            work.set_wr_atomic(theirs.rkey, theirs.buf + offset, **atomic)
        elif opcode != e.IBV_WR_SEND:
            work.set_wr_rdma(theirs.rkey, theirs.buf + offset)
        left.post_send(work)
        line, = ended(cq, 1)
        assert line[0] == number and line[3] == e.IBV_WC_SUCCESS, line

    ours.write("a" * 5000, 5000)
    request(1, e.IBV_WR_RDMA_WRITE, own(0, 5000), offset=100)
    assert theirs.read(5000, 100) == b"a" * 5000 and theirs.read(1, 99) == b"\0"
    theirs.write("b" * 3000, 3000)
    request(2, e.IBV_WR_RDMA_READ, own(4096, 3000))
    assert ours.read(3000, 4096) == b"b" * 3000
    theirs.write((41).to_bytes(8, "little").decode("latin1"), 8)
    request(3, e.IBV_WR_ATOMIC_FETCH_AND_ADD, own(0, 8), compare_add=1, swap=0)
    assert int.from_bytes(theirs.read(8, 0), "little") == 42 and int.from_bytes(ours.read(8, 0), "little") == 41
    request(4, e.IBV_WR_ATOMIC_CMP_AND_SWP, own(0, 8), compare_add=42, swap=7)
    assert int.from_bytes(theirs.read(8, 0), "little") == 7
    right.post_recv(RecvWR(wr_id=50, num_sge=1, sg=[SGE(theirs.buf, 4000, theirs.lkey)]))
    left.post_send(SendWR(wr_id=5, opcode=e.IBV_WR_SEND, num_sge=1, sg=own(4096, 3000)))
    lines = sorted(ended(cq, 2))
    assert [line[0] for line in lines] == [5, 50] and lines[1][2] == 3000, lines
    assert theirs.read(3000, 0) == b"b" * 3000
    # A key that opens nothing.
    work = SendWR(wr_id=6, opcode=e.IBV_WR_RDMA_WRITE, num_sge=1, sg=own(0, 8))
    work.set_wr_rdma(theirs.rkey ^ 0x55, theirs.buf)
    left.post_send(work)
    assert ended(cq, 1)[0][3] == e.IBV_WC_REM_ACCESS_ERR
    for thing in (left, right, ours, theirs, pd):
        thing.close()


def main():
    name = get_device_list()[0].name.decode()
    context = Context(name=name)
    drive(context, CQ(context, 32))
    drive(context, CQEX(context, CqInitAttrEx(cqe=32, wc_flags=e.IBV_WC_STANDARD_FLAGS)))
    try:
        CQ(context, 0)
    except PyverbsRDMAError:
        pass
    else:
        raise AssertionError("a completion queue of nothing")
    print(f"pyverbs on {name}: write, read, atomics, send, by both kinds of queues")


main()
