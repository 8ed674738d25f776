"""The process pool behind ``-P atomic``.

```
prefork        Celery's face of the pool
├── backlog    errands that wait in the host, and who gets them
├── crew       the children: forked, watched, replaced
│   └── link   the host's end of one child: its process, stream, tokens and queue
├── limits     soft and hard time limits
└── watch      the descriptors waited for, on Celery's hub or without it
child          what runs in a child; seat: what it is born with; vigil: who watches over it
wire, tokens, deadline_page       what host and child share
errand, pace, process_tree           one piece of work, how fast such go, how to end a process for good
```

A child gets several errands at once, so that it need not wait for the host between two short ones, and still every
errand it has not begun can be taken back without a race: to begin one it must draw a token from a pipe, and the host
takes errands back by drawing tokens from the same pipe. The kernel gives each token to exactly one of them.
"""
