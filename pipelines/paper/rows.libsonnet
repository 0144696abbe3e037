// The eleven rows of the paper's Table 1: NL2RepoBench, 122B, 32 nodes, mean staleness 1.5. A cell has four nodes unless said otherwise.
// What the paper's text leaves open and is assumed here: A0, A2, A3 train on 4 of 8 cells; A1 on 3; C1 and C2 keep one cell's nodes
// standalone, C3 four: with two or three of eight, more standalone nodes would make C3 faster than C2 in simulation, and the paper says
// that they make it slower.
local async = { policy: 'async', phi: 1.5, mu: 1, cells: 8, standalone: 0, nodes_per_cell: 4, train_cells: 4, streaming: false };
local colocate = { policy: 'colocate', phi: 0, mu: 4, cells: 8, standalone: 0, nodes_per_cell: 4, train_cells: 4, streaming: false };
local elastic = { policy: 'elastic', phi: 0.5, mu: 3, cells: 8, standalone: 0, nodes_per_cell: 4, train_cells: 4, streaming: true };
{
  // Async
  A0: async,
  A1: async { train_cells: 3 },  // nodes moved from training to rollout
  A2: async { phi: 0.5, mu: 3 },  // longer bursts
  A3: async { streaming: true },
  // Colocate
  C0: colocate,
  C1: colocate { cells: 7, standalone: 1, phi: 0.5, mu: 3 },  // 28 nodes and 4 standalone ones, with extra dispatch
  C2: self.C1 { streaming: true },
  C3: self.C2 { cells: 4, standalone: 4, train_cells: 2 },  // more standalone nodes
  // Elastic
  E0: elastic,
  E1: elastic { phi: 1.5, mu: 1 },
  E2: elastic { cells: 4, nodes_per_cell: 8, train_cells: 2 },  // larger cells
}
