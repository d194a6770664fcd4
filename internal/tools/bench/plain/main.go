// Plain is the server that the benchmark compares Petstore with. It does the same work with
// the same pets as in a tutorial of this stack: Gin, one pgx query, c.JSON, and an order as
// BEGIN, SELECT FOR UPDATE, UPDATE, INSERT, COMMIT. Its tables are in schema.sql. It has no
// keys, limits, logs, validation, ETags, accounts or sort orders.
package main

import (
	"context"
	"errors"
	"log/slog"
	"net/http"
	"os"
	"strconv"
	"time"

	"github.com/gin-gonic/gin"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
)

type pet struct {
	ID         int64  `json:"id"`
	Name       string `json:"name" binding:"required"`
	CategoryID int64  `json:"categoryId" binding:"required"`
	Status     string `json:"status"`
}

type order struct {
	ID       int64      `json:"id"`
	PetID    int64      `json:"petId" binding:"required"`
	Quantity int64      `json:"quantity" binding:"required"`
	ShipDate *time.Time `json:"shipDate,omitempty"`
	Complete bool       `json:"complete"`
}

type handlers struct{ pool *pgxpool.Pool }

// main serves on the address, database URL and number of connections in its arguments.
func main() {
	if err := run(context.Background(), os.Args[1], os.Args[2], os.Args[3]); err != nil {
		slog.Error("plain failed", "error", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, addr, url, maxConns string) error {
	config, err := pgxpool.ParseConfig(url)
	if err != nil {
		return err
	}
	conns, err := strconv.Atoi(maxConns)
	if err != nil {
		return err
	}
	config.MaxConns = int32(conns)
	pool, err := pgxpool.NewWithConfig(ctx, config)
	if err != nil {
		return err
	}
	defer pool.Close()
	h := &handlers{pool: pool}
	gin.SetMode(gin.ReleaseMode)
	engine := gin.New()
	engine.GET("/pets", h.listPets)
	engine.GET("/pets/:petId", h.getPet)
	engine.POST("/pets", h.createPet)
	engine.POST("/store/orders", h.placeOrder)
	server := &http.Server{Addr: addr, Handler: engine, ReadHeaderTimeout: time.Minute}
	return server.ListenAndServe()
}

func (h *handlers) getPet(c *gin.Context) {
	id, err := strconv.ParseInt(c.Param("petId"), 10, 64)
	if err != nil {
		c.JSON(http.StatusBadRequest, gin.H{"error": "invalid id"})
		return
	}
	var p pet
	err = h.pool.QueryRow(c.Request.Context(), "SELECT id, name, category_id, status FROM pets WHERE id = $1", id).
		Scan(&p.ID, &p.Name, &p.CategoryID, &p.Status)
	if errors.Is(err, pgx.ErrNoRows) {
		c.JSON(http.StatusNotFound, gin.H{"error": "not found"})
		return
	}
	if err != nil {
		c.JSON(http.StatusInternalServerError, gin.H{"error": err.Error()})
		return
	}
	c.JSON(http.StatusOK, p)
}

func (h *handlers) listPets(c *gin.Context) {
	limit, err := strconv.Atoi(c.DefaultQuery("limit", "50"))
	if err != nil {
		c.JSON(http.StatusBadRequest, gin.H{"error": "invalid limit"})
		return
	}
	after, err := strconv.ParseInt(c.DefaultQuery("after", "0"), 10, 64)
	if err != nil {
		c.JSON(http.StatusBadRequest, gin.H{"error": "invalid after"})
		return
	}
	rows, err := h.pool.Query(c.Request.Context(), "SELECT id, name, category_id, status FROM pets WHERE id > $1 ORDER BY id LIMIT $2", after, limit)
	if err != nil {
		c.JSON(http.StatusInternalServerError, gin.H{"error": err.Error()})
		return
	}
	defer rows.Close()
	pets := []pet{}
	for rows.Next() {
		var p pet
		if err := rows.Scan(&p.ID, &p.Name, &p.CategoryID, &p.Status); err != nil {
			c.JSON(http.StatusInternalServerError, gin.H{"error": err.Error()})
			return
		}
		pets = append(pets, p)
	}
	if rows.Err() != nil {
		c.JSON(http.StatusInternalServerError, gin.H{"error": rows.Err().Error()})
		return
	}
	c.JSON(http.StatusOK, pets)
}

func (h *handlers) createPet(c *gin.Context) {
	var p pet
	if err := c.ShouldBindJSON(&p); err != nil {
		c.JSON(http.StatusBadRequest, gin.H{"error": err.Error()})
		return
	}
	p.Status = "available"
	err := pgx.BeginFunc(c.Request.Context(), h.pool, func(tx pgx.Tx) error {
		err := tx.QueryRow(c.Request.Context(),
			"INSERT INTO pets (name, category_id, status) VALUES ($1, $2, $3) RETURNING id", p.Name, p.CategoryID, p.Status).Scan(&p.ID)
		if err != nil {
			return err
		}
		_, err = tx.Exec(c.Request.Context(), "INSERT INTO inventory (pet_id, quantity) VALUES ($1, 0)", p.ID)
		return err
	})
	if err != nil {
		c.JSON(http.StatusInternalServerError, gin.H{"error": err.Error()})
		return
	}
	c.JSON(http.StatusCreated, p)
}

var errNoStock = errors.New("insufficient stock")

func (h *handlers) placeOrder(c *gin.Context) {
	var o order
	if err := c.ShouldBindJSON(&o); err != nil {
		c.JSON(http.StatusBadRequest, gin.H{"error": err.Error()})
		return
	}
	ctx := c.Request.Context()
	err := pgx.BeginFunc(ctx, h.pool, func(tx pgx.Tx) error {
		var stock int64
		if err := tx.QueryRow(ctx, "SELECT quantity FROM inventory WHERE pet_id = $1 FOR UPDATE", o.PetID).Scan(&stock); err != nil {
			return err
		}
		if stock < o.Quantity {
			return errNoStock
		}
		_, err := tx.Exec(ctx, "UPDATE inventory SET quantity = quantity - $2 WHERE pet_id = $1", o.PetID, o.Quantity)
		if err != nil {
			return err
		}
		return tx.QueryRow(ctx, "INSERT INTO orders (pet_id, quantity, ship_date) VALUES ($1, $2, $3) RETURNING id",
			o.PetID, o.Quantity, o.ShipDate).Scan(&o.ID)
	})
	switch {
	case errors.Is(err, errNoStock):
		c.JSON(http.StatusConflict, gin.H{"error": err.Error()})
	case err != nil:
		c.JSON(http.StatusInternalServerError, gin.H{"error": err.Error()})
	default:
		c.JSON(http.StatusCreated, o)
	}
}
